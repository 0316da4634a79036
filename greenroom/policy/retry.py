"""When is a turn retried? `RetryPolicy` and its delays, as data for the pure policy. Pure."""

from __future__ import annotations
