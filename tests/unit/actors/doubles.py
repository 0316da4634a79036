"""Doubles for the runtime's own tests."""

from greenroom.actors.runtime import LoopActor


class Line:
    """A dispatcher that keeps who was scheduled."""

    def __init__(self):
        self.scheduled = []
        self.first = []  # for each call, whether it was to be before others

    def schedule(self, actor, *, first=False):
        self.scheduled.append(actor)
        self.first.append(first)

    def run(self):
        while self.scheduled:
            actor = self.scheduled.pop(0)
            if actor.run_batch(64):
                self.scheduled.append(actor)


class Echo(LoopActor):
    def __init__(self, line, *, failing=()):
        super().__init__(line)
        self.failing = failing
        self.seen = []
        self.downs = []

    def handle(self, message):
        if message in self.failing:
            raise self.failing[message]
        self.seen.append(message)
        return message

    def on_down(self, error):
        self.downs.append(error)
