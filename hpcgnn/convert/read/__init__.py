"""What formats have in common: text, arrays of NumPy, pickles, features."""
