from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import confirm


@csrf_exempt
def order(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        placed = Order.objects.create(email=request.POST["email"])
        confirm.enqueue_sync(placed.pk)
        if "fail" in request.POST:
            raise ValueError("rolled back")
    return HttpResponse(str(placed.pk), status=201)
