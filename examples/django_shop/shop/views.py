from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import confirm


@csrf_exempt
@require_POST
def order(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        placed = Order.objects.create(email=request.POST["email"], cents=int(request.POST["cents"]))
        confirm.enqueue_sync(placed.pk)  # joins the transaction: no order without its mail, no mail without its order
        if placed.cents == 0:
            raise ValueError("an order over nothing")
    return HttpResponse(f"order {placed.pk}\n", status=201)
