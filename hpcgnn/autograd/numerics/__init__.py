"""How numbers are added and multiplied: plainly, in 16 bits, or so that sums are exact."""
