"""Scales moved from the channels of one tensor to another, through what lies between them, float outputs unchanged."""
