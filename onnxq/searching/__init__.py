"""The fastest model that is accurate enough by the user's own measure: what is tried, in which order, and how."""
