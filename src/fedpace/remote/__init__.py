"""What devices and Flower share: who is who, what replies say, waiting for clients."""
