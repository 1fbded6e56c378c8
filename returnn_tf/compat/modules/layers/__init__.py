"""Layer and loss classes of configs that derive from those of RETURNN: their bases, and what makes them layers here."""
