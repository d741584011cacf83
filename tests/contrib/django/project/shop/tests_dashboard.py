"""The dashboard as a part of the site, through Django's own clients: WSGI and ASGI."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, Client, TestCase
from django.urls import reverse

from shop.tasks import pay

PAGE = {"Accept": "text/html"}
FORM = "application/x-www-form-urlencoded"


def user(name: str, *permissions: str, **more: Any) -> User:
    made = User.objects.create_user(name, password="secret", **more)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions, content_type__app_label="stoker"))
    return made


class Base(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.users = {
            "customer": user("customer"),
            "clerk": user("clerk", is_staff=True),
            "reader": user("reader", "view_dashboard", is_staff=True),
            "outsider": user("outsider", "view_dashboard"),
            "operator": user("operator", "operate_dashboard", is_staff=True),
            "root": User.objects.create_superuser("root", password="secret"),
        }


class Wsgi(Base):
    def as_(self, name: str) -> Client:
        client = Client(headers=PAGE)
        client.force_login(self.users[name])
        return client

    def test_a_visitor_is_sent_to_sign_in(self) -> None:
        answer = Client(headers=PAGE).get("/jobs/queues?q=1")
        self.assertRedirects(answer, "/admin/login/?next=%2Fjobs%2Fqueues%3Fq%3D1", 303, fetch_redirect_response=False)
        self.assertEqual(Client().get("/jobs/api/v1/overview").status_code, 401)

    def test_it_is_for_staff_with_the_permission(self) -> None:
        for name, status in [("customer", 403), ("clerk", 403), ("outsider", 403), ("reader", 200), ("root", 200)]:
            with self.subTest(name):
                self.assertEqual(self.as_(name).get("/jobs/").status_code, status)

    def test_pages_forms_and_the_api(self) -> None:
        job = pay.enqueue_sync(7)
        client = self.as_("operator")
        page = client.get("/jobs/jobs")
        self.assertContains(page, f'href="/jobs/jobs/{job.id}"')
        self.assertContains(page, "shop")
        [style] = re.findall(r'href="(/jobs/static/[^"]+\.css)"', page.text)[:1]
        self.assertEqual(client.get(style).headers["content-type"], "text/css; charset=utf-8")
        [token] = re.findall(r'name="csrf" value="([^"]+)"', page.text)[:1]
        self.assertEqual(client.post(f"/jobs/jobs/{job.id}/cancel", "csrf=x", content_type=FORM).status_code, 403)
        answer = client.post(f"/jobs/jobs/{job.id}/cancel", f"csrf={token}", content_type=FORM)
        self.assertRedirects(answer, f"/jobs/jobs/{job.id}", 303, fetch_redirect_response=False)
        self.assertEqual(client.get(f"/jobs/api/v1/jobs/{job.id}").json()["status"], "canceled")
        self.assertContains(client.get("/jobs/audit"), "operator")

    def test_a_reader_changes_nothing(self) -> None:
        job = pay.enqueue_sync(7)
        client = self.as_("reader")
        client.get("/jobs/jobs")
        token = next(one.value for name, one in client.cookies.items() if name.startswith("stoker_csrf"))
        answer = client.post(f"/jobs/jobs/{job.id}/cancel", f"csrf={token}", content_type=FORM)
        self.assertContains(answer, "This needs the role operate", status_code=403)

    def test_live_pages_ask_instead_of_streaming(self) -> None:
        self.assertEqual(self.as_("reader").get("/jobs/live?page=overview").status_code, 429)
        self.assertEqual(self.as_("reader").get("/jobs/pieces?page=overview").status_code, 200)

    def test_the_link_in_the_admin(self) -> None:
        link = reverse("admin:stoker_dashboard_changelist")
        self.assertContains(self.as_("root").get("/admin/"), f'href="{link}"')
        self.assertNotContains(self.as_("root").get("/admin/"), "stoker/dashboard/add")
        self.assertContains(self.as_("reader").get("/admin/"), f'href="{link}"')
        self.assertNotContains(self.as_("clerk").get("/admin/"), f'href="{link}"')
        self.assertRedirects(self.as_("reader").get(link), "/jobs/", fetch_redirect_response=False)


class Asgi(Base):
    async def test_pages_and_streams(self) -> None:
        job = await pay.enqueue(7)
        client = AsyncClient()
        self.assertEqual((await client.get("/jobs/", headers=PAGE)).status_code, 303)
        await client.aforce_login(self.users["reader"])
        self.assertContains(await client.get("/jobs/jobs"), f'href="/jobs/jobs/{job.id}"')
        answer = await client.get("/jobs/live?page=overview")
        self.assertEqual(answer.headers["content-type"], "text/event-stream; charset=utf-8")
        async for part in answer.streaming_content:
            self.assertIn(b"event", part)
            break
        await answer.streaming_content.aclose()
        await client.aforce_login(self.users["customer"])
        self.assertEqual((await client.get("/jobs/")).status_code, 403)
