//! Tools that the tests of the reactor share.

use std::collections::HashMap;

use fieldstone_block::Nanos;
use fieldstone_uring::{Event, Reactor, ReactorOptions, TaskRun, Token};

/// No operation in these tests takes this long unless it hangs.
pub const PATIENCE: Nanos = Nanos::from_ms(20_000);

/// A small ring, so that tests reach its bounds.
pub fn reactor(entries: u32) -> Reactor {
    reactor_with(entries, TaskRun::Deferred)
}

/// A small ring in a chosen completion mode.
pub fn reactor_with(entries: u32, task_run: TaskRun) -> Reactor {
    let options = ReactorOptions { entries, task_run, ..ReactorOptions::default() };
    Reactor::new(options).expect("this kernel has io_uring")
}

/// Runs turns until `count` events arrived. Fails instead of hanging.
pub fn collect(reactor: &mut Reactor, count: usize) -> Vec<Event> {
    let deadline = reactor.fresh_now().plus(PATIENCE);
    let mut events = Vec::new();
    while events.len() < count {
        reactor.turn_until(&mut events, deadline).expect("the ring works");
        assert!(reactor.now() < deadline, "{} of {count} events after {PATIENCE:?}", events.len());
    }
    assert_eq!(events.len(), count, "{events:?}");
    events
}

/// The only event.
pub fn one(reactor: &mut Reactor) -> Event {
    collect(reactor, 1).pop().expect("one was collected")
}

/// Events by token, where each token occurs once.
pub fn by_token(events: Vec<Event>) -> HashMap<Token, Event> {
    let count = events.len();
    let map: HashMap<_, _> = events.into_iter().map(|event| (event.token, event)).collect();
    assert_eq!(map.len(), count, "a token was reported twice");
    map
}
