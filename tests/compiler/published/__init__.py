"""Small networks of the kinds that published setups have, one module for each kind of task."""
