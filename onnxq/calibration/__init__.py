"""Run the float model over data, once, and keep what every range method needs to know of each tensor."""
