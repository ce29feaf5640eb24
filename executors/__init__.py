"""Executors, through which a minion runs functions."""
