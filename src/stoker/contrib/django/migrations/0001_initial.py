"""The permissions of the dashboard."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes no table."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Dashboard",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "permissions": (
                    ("operate_dashboard", "Can change jobs, queues and schedules"),
                    ("administer_dashboard", "Can see masked values"),
                ),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    )
