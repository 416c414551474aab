//! Dropping a reactor with operations in flight.

use std::io::Write;
use std::os::unix::net::UnixStream;

use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{
    Caching, Creation, File, FileOptions, Listener, Socket, TaskRun, Token, Want, monotonic_now,
};

use crate::common::reactor_with;

#[test]
fn a_dropped_reactor_lets_go_of_everything_before_it_returns() {
    for task_run in [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("writable");
        let (ours, mut theirs) = UnixStream::pair().expect("descriptors");
        let ours = Socket::new(ours.into()).expect("a socket");
        let mut place = vec![0u8; 4096].into_boxed_slice();
        let mut reactor = reactor_with(4, task_run);
        let (_sender, _mailbox) = reactor.mailbox::<u8>(1, Token(9)).expect("descriptors");

        let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().expect("valid")).expect("free");
        reactor.accept(&listener, Token(1));
        // SAFETY: `place` is not touched until the reactor is gone.
        unsafe { reactor.recv_raw(&ours, place.as_mut_ptr(), 4096, Want::All, Token(2)) };
        let (idle, _peer) = Socket::pair().expect("descriptors");
        reactor.recv(&idle, AlignedBuf::zeroed(100), Want::Any, Token(3));
        reactor.send(&idle, vec![fieldstone_buf::zeroes(8 << 20)], Token(4));
        reactor.send(&idle, vec!["waits in its lane".into()], Token(5));
        let mut events = Vec::new();
        reactor.turn_nowait(&mut events).expect("the ring works");
        assert!(events.is_empty(), "{events:?}");
        let options =
            FileOptions { write: true, creation: Creation::New, caching: Caching::Direct };
        let file = File::open(&folder.path().join("f"), options).expect("created");
        for i in 0..64 {
            // Direct disk writes in the kernel, in the queue and in the backlog.
            reactor.write(&file, i << 20, vec![fieldstone_buf::zeroes(1 << 20)], Token(6));
            reactor.fsync(&file, false, Token(7));
        }
        let start = monotonic_now();
        drop(reactor);
        assert!(monotonic_now().since(start).0 < 8_000_000_000, "it did not wait for the limit");

        // The receive is over: later bytes stay in the socket.
        theirs.write_all(&[0xee; 4096]).expect("our end is open");
        assert!(place.iter().all(|byte| *byte == 0));
        drop(ours);
        assert!(theirs.write_all(&[0xee]).is_err(), "no operation holds the socket any more");
    }
}
