from django.db import models


class Order(models.Model):
    email = models.EmailField()
    cents = models.PositiveIntegerField()
    placed_at = models.DateTimeField(auto_now_add=True)
