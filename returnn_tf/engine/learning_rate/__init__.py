"""The learning rate of each epoch, and the file of rates and scores."""
