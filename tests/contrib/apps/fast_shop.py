"""A FastAPI app with a worker inside, for a real server; `$SHOP` is the folder of its store and of its marks."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import FastAPI

from stoker import Stoker, current
from stoker.contrib.fastapi import lifespan

FOLDER = Path(os.environ["SHOP"])

jobs = Stoker(f"sqlite:///{FOLDER}/shop.db")
app = FastAPI(lifespan=lifespan(jobs, worker=True))


@jobs.task
async def pack(order: int) -> str:
    (FOLDER / "packing").touch()
    await current().stopping  # the server has been told to stop
    return f"order {order} packed"


@app.post("/orders/{order}")
async def create(order: int) -> str:
    return (await pack.enqueue(order)).id
