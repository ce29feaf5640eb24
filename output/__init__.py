"""How ``salt-run`` shows what our runners return."""
