"""A Flask app with a factory, for the command line; `$SHOP` is the folder of its store."""

from __future__ import annotations

import os

from flask import Flask, current_app

from stoker.contrib.flask import FlaskStoker

jobs = FlaskStoker(attempts=2)


@jobs.task
def pack(order: int) -> str:
    return f"{current_app.config['SHOP']} packs {order}"


@jobs.task(isolation="process")
def weigh(order: int) -> str:
    return f"{current_app.config['SHOP']} weighs {order}"


def create_app() -> Flask:
    app = Flask("shop")
    app.config.from_mapping(SHOP="corner", STOKER_URL=f"sqlite:///{os.environ['SHOP']}/shop.db")
    jobs.init_app(app)
    return app
