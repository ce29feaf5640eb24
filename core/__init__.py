"""What the engines and runners share: two pure machines and the adapters around them."""
