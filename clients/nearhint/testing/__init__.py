"""A daemon for tests: in this process, over a real socket, from canned data.

    with FakeDaemon(directory) as daemon:
        daemon.plan(program, plan)
        daemon.publish(table)
        session = session_for(daemon.address, device)

It compiles and measures nothing; it keeps what it was asked, so that a test can look. `fail` and
`hold` make it refuse or delay single calls, `corrupt` makes it lie about an Artifact.

May import: what `nearhint` may, and grpc.
"""

from nearhint.testing.answers import TARGET_ID, FakeAnswers, FakeStore
from nearhint.testing.daemon import FakeDaemon

__all__ = ["TARGET_ID", "FakeAnswers", "FakeDaemon", "FakeStore"]
