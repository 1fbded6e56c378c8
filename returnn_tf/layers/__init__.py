"""The layer classes and losses, in folders by topic."""
