from django.db import models


class Order(models.Model):
    email = models.EmailField()
    paid = models.BooleanField(default=False)
