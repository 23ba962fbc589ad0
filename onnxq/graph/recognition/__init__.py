"""What a part of a graph computes, told from its operators or from its numbers; nothing is changed."""
