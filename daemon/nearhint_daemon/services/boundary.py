"""What every call passes through: a deadline, metrics, and errors as `google.rpc.Status`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from nearhint_daemon import logs
from nearhint_daemon.errors import DOMAIN, STATUS_OF_CODE, DaemonError, InvalidRequest
from nearhint_daemon.metrics import Metrics
from nearhint_daemon.workers.errors import WorkersError
from nearhint_rules.errors import InvalidMessage, RulesError

UNARY_LIMIT_S = 60.0
DETAILS_KEY = "grpc-status-details-bin"
KNOWN_ERRORS = (DaemonError, RulesError, WorkersError)

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any  # a grpc.RpcMethodHandler, whose stubs know no asyncio handlers


def status_of(code: str, message: str, **more: Any) -> status_pb2.Status:
    """A status with the reason in ErrorInfo; `more`: field, problem, hint, retry_after_s."""
    details: list[any_pb2.Any] = []

    def add(detail: Any) -> None:
        packed = any_pb2.Any()
        packed.Pack(detail)
        details.append(packed)

    hint = more.get("hint", "")
    metadata = {"hint": hint} if hint else {}
    add(error_details_pb2.ErrorInfo(reason=code, domain=DOMAIN, metadata=metadata))
    if more.get("field"):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=more["field"], description=more.get("problem") or message
        )
        add(error_details_pb2.BadRequest(field_violations=[violation]))
    if more.get("retry_after_s"):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(more["retry_after_s"] * 1000))
        add(error_details_pb2.RetryInfo(retry_delay=delay))
    name = STATUS_OF_CODE.get(code, "INTERNAL")
    return status_pb2.Status(
        code=code_pb2.Code.Value(name), message=message[:1000], details=details
    )


def status_of_error(error: Exception) -> status_pb2.Status:
    """The status that stands for an error of ours."""
    if isinstance(error, DaemonError):
        return status_of(
            error.code,
            str(error),
            field=error.field,
            hint=error.hint,
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, InvalidMessage):
        return status_of(error.code, str(error), field=error.field, problem=error.problem)
    if isinstance(error, KNOWN_ERRORS):
        return status_of(error.code, str(error))
    return status_of("INTERNAL", "internal error; the daemon's log has it")


def below(field: str, error: RulesError) -> Exception:
    """A rule's error with `field` before the place that it names."""
    place = error.field if isinstance(error, InvalidMessage) else ""
    problem = error.problem if isinstance(error, InvalidMessage) else str(error)
    return InvalidRequest(problem, field=".".join(part for part in (field, place) if part))


async def _send(context: Context, response: Any) -> None:
    """Sends one of a stream's answers; a connection that broke meanwhile is a call given up."""
    try:
        await context.write(response)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps every handler of our services; health passes untouched."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler, wrapped."""
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").rpartition("/")
        if handler is None or not service.startswith("nearhint."):
            return handler
        serving = _Serving(
            self._metrics, service.rpartition(".")[2], method, handler.request_deserializer
        )
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                serving.unary(handler.unary_unary),
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_stream_rpc_method_handler(
            serving.stream(handler.unary_stream),
            response_serializer=handler.response_serializer,
        )


class _Serving:
    """One method's calls; a request comes as bytes, which need be no message of ours."""

    def __init__(
        self, metrics: Metrics, service: str, method: str, parse: Callable[[bytes], Any]
    ) -> None:
        self._metrics = metrics
        self._service = service
        self._method = method
        self._parse = parse
        self._in_flight = metrics.rpcs_in_flight.labels(method)
        self._seconds = metrics.rpc_seconds.labels(service, method)

    def unary(self, behave: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: bytes, context: Context) -> Any:
            started = time.perf_counter()
            self._in_flight.inc()
            code = "OK"
            try:
                async with asyncio.timeout(UNARY_LIMIT_S):
                    return await behave(self._read(request), context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except TimeoutError:
                code = "DEADLINE_EXCEEDED"
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED, f"took more than {UNARY_LIMIT_S:.0f} s"
                )
            except Exception as error:
                status = self._status(error)
                code = code_pb2.Code.Name(status.code)
                await self._abort(status, context)
            finally:
                self._ended(started, code)

        return call

    def stream(self, behave: Callable[..., AsyncGenerator[Any]]) -> Callable[..., Awaitable[None]]:
        async def call(request: bytes, context: Context) -> None:
            started = time.perf_counter()
            self._in_flight.inc()
            code = "OK"
            try:
                # What a client that is gone leaves half read is closed here, not by a collector.
                async with aclosing(behave(self._read(request), context)) as responses:
                    async for response in responses:
                        await _send(context, response)
                        del response  # the next may be long in coming
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:
                status = self._status(error)
                code = code_pb2.Code.Name(status.code)
                await self._abort(status, context)
            finally:
                self._ended(started, code)

        return call

    def _read(self, request: bytes) -> Any:
        try:
            return self._parse(request)
        except DecodeError:
            raise InvalidRequest("the bytes are no message of this method") from None

    def _ended(self, started: float, code: str) -> None:
        self._in_flight.dec()
        self._seconds.observe(time.perf_counter() - started)
        self._metrics.rpcs.labels(self._service, self._method, code).inc()

    async def _abort(self, status: status_pb2.Status, context: Context) -> None:
        await context.abort(
            grpc.StatusCode[code_pb2.Code.Name(status.code)],
            status.message,
            trailing_metadata=((DETAILS_KEY, status.SerializeToString()),),
        )

    def _status(self, error: Exception) -> status_pb2.Status:
        if not isinstance(error, KNOWN_ERRORS):
            logs.error("rpc_failed", method=self._method)
        return status_of_error(error)
