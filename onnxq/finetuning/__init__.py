"""What ``finetune`` learns from, and how it judges what it has learned."""
