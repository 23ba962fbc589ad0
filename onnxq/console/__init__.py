"""What belongs to a program on a terminal: its text, its progress, its end."""
