"""From the network dictionary to the plan."""
