"""Pictures to codes and back."""
