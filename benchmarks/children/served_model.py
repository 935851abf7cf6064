"""One model, served and used directly: served_model.py JOB. Says where it is served; then takes a command a line.

A prompt (JSON, token ids) is answered by the library alone, in the main thread: each piece of text goes to stdout as soon
as it is there, with `\\x1e` behind it, and `\\x1d` comes last. `times` is answered with seconds of processor time: of each
thread that Python knows, by its name, and of all.
"""

import asyncio
import json
import logging
import os
import socket
import sys
import threading
import time

from cherenkov.chat.options import Settings
from cherenkov.chat.responder import Prompt
from cherenkov_server.config import load_config
from cherenkov_server.guard import Keys
from cherenkov_server.loading import engine_of
from cherenkov_server.log import logging_to_stderr
from cherenkov_server.serve import Running


def main() -> None:
    job = json.loads(sys.argv[1])
    config, _ = load_config({"server.model": job["model"], **job["settings"]})
    engine = engine_of(config, {"threads": job["threads"]})
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    with logging_to_stderr(as_json=False), socket.create_server(("127.0.0.1", 0)) as listener:
        running = Running(config, engine, Keys([]), listener, name="m")
        ready = threading.Event()

        async def serve() -> None:
            serving = asyncio.create_task(running.run())
            await running.service.load()
            ready.set()
            await serving

        connections = threading.Thread(target=lambda: asyncio.run(serve()), name="connections")
        connections.start()
        ready.wait()
        say(running.url + "\n")
        responder = engine.wait_ready().responder
        for line in sys.stdin:
            if line == "times\n":
                say(json.dumps(times()) + "\n")
                continue
            prompt = Prompt(tuple(json.loads(line)), opened=False)
            settings = Settings().updated(job["options"])
            decoder = responder.tokenizer.decoder()
            for step in responder.taking_turns(responder.steps(prompt, settings)):
                if text := decoder.feed(step.token):
                    say(text + "\x1e")
            say("\x1d")
        running.stop()
        connections.join()
        engine.close()


def say(text: str) -> None:
    os.write(1, text.encode())


def times() -> dict[str, float]:
    found = {"process": time.process_time()}
    for thread in threading.enumerate():
        if thread.native_id:
            found[thread.name] = time.clock_gettime(
                ~thread.native_id << 3 | 6
            )  # CLOCK_THREAD_CPUTIME_ID
    return found


main()
