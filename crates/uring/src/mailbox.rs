//! Messages between cores: a bounded queue with many senders and one receiver, and a bell.
//!
//! A sender takes a short lock, appends, and rings the receiving reactor's bell if the queue was
//! empty. The receiver takes all messages at once by swapping vectors. So a busy pair of cores pays
//! one uncontended lock per message, one atomic operation per batch, and no system call.
//!
//! # The bell
//!
//! One word per reactor with three states:
//!
//! ```text
//!   IDLE    no sender rang since the reactor's last look; the reactor is awake
//!   RUNG    some mailbox became non-empty; no further sender needs to ring
//!   ASLEEP  the reactor is about to block in the kernel, or does
//!
//!   ring:    old = swap(RUNG);  if old == ASLEEP, write to the eventfd
//!   sleep:   compare_exchange(IDLE -> ASLEEP); on failure do not sleep
//!   look:    old = swap(IDLE);  if old == RUNG, check every mailbox
//! ```
//!
//! No wake-up is lost, because a message is in its queue before the bell rings. If the ring comes
//! before `sleep`, the compare-exchange fails. If it comes after, the swap finds `ASLEEP` and the
//! eventfd ends the wait, even if the reactor has not reached the kernel yet. A sender that finds
//! the queue non-empty need not ring: the sender that made the queue non-empty rings, and the
//! receiver takes all messages.
//!
//! One multishot poll per ring watches the eventfd, edge triggered. No code ever reads the eventfd,
//! so a wake-up costs one `write` on the sender's side and one completion on the receiver's.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const IDLE: u32 = 0;
const RUNG: u32 = 1;
const ASLEEP: u32 = 2;

/// The bell of one reactor.
#[derive(Debug)]
pub(crate) struct Bell {
    state: AtomicU32,
    eventfd: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd() takes no pointers.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let eventfd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { state: AtomicU32::new(IDLE), eventfd })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            let one = 1u64.to_ne_bytes();
            // The write can only fail when the counter is full, and then the poll has fired.
            // SAFETY: `one` is eight readable bytes.
            unsafe { libc::write(self.raw(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Announces that the reactor is about to block. False if it must not, because the bell rang.
    pub(crate) fn try_sleep(&self) -> bool {
        let change = self.state.compare_exchange(IDLE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        change.is_ok()
    }

    /// True if the bell rang since the last look. Changes nothing.
    pub(crate) fn has_rung(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNG
    }

    /// Announces that the reactor is awake. True if the bell rang since the last look.
    pub(crate) fn answer(&self) -> bool {
        // The plain load keeps the cache line shared while no sender rings.
        self.state.load(Ordering::Acquire) != IDLE
            && self.state.swap(IDLE, Ordering::AcqRel) == RUNG
    }
}

/// A mailbox as the reactor sees it, for any type of message.
pub(crate) trait Inbox {
    /// True if messages wait.
    fn is_waiting(&self) -> bool;
    /// True if the receiver is gone.
    fn is_closed(&self) -> bool;
}

#[derive(Debug)]
struct Queue<T> {
    messages: Vec<T>,
    closed: bool,
}

#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    capacity: usize,
    bell: Arc<Bell>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // No code under the lock can leave the queue in an inconsistent state.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Inbox for Shared<T> {
    fn is_waiting(&self) -> bool {
        !self.lock().messages.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

/// Makes a mailbox with `bell`.
pub(crate) fn make<T: Send + 'static>(
    capacity: usize,
    bell: Arc<Bell>,
) -> (Sender<T>, Mailbox<T>, Arc<dyn Inbox>) {
    let queue = Mutex::new(Queue { messages: Vec::new(), closed: false });
    let shared = Arc::new(Shared { queue, capacity, bell });
    let inbox: Arc<dyn Inbox> = Arc::<Shared<T>>::clone(&shared);
    (Sender { shared: Arc::clone(&shared) }, Mailbox { shared }, inbox)
}

/// Why a message was not sent. The error returns the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// The mailbox holds as many messages as its capacity. Try again later.
    #[error("the mailbox is full")]
    Full(T),
    /// The receiver is gone.
    #[error("the mailbox is closed")]
    Closed(T),
}

/// The sending end of a mailbox. It can be cloned, and any thread can send.
#[derive(Debug)]
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Sender<T> {
    /// Puts a message into the mailbox, and wakes the receiver if it sleeps. Messages of one sender
    /// arrive in order.
    ///
    /// # Errors
    /// The mailbox is full or closed. The error returns the message.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.put(message).map(drop)
    }

    /// As [`Sender::send`], but wakes the receiver only when the returned [`WakeUp`] is dropped. So
    /// a sender that holds a lock which the receiver needs first releases the lock.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn put(&self, message: T) -> Result<WakeUp<'_>, SendError<T>> {
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(SendError::Closed(message));
        }
        if queue.messages.len() >= self.shared.capacity {
            return Err(SendError::Full(message));
        }
        let was_empty = queue.messages.is_empty();
        queue.messages.push(message);
        Ok(WakeUp(was_empty.then_some(&*self.shared.bell)))
    }
}

/// Wakes the receiver of a message when it is dropped, if the receiver has to be woken. Until then
/// no later message wakes the receiver either.
#[derive(Debug)]
#[must_use = "dropping it wakes the receiver"]
pub struct WakeUp<'a>(Option<&'a Bell>);

impl Drop for WakeUp<'_> {
    fn drop(&mut self) {
        if let Some(bell) = self.0 {
            bell.ring();
        }
    }
}

/// The receiving end of a mailbox. Its reactor reports [`Payload::Mail`](crate::Payload::Mail) when
/// the mailbox became non-empty. Dropping this end drops the messages and closes the mailbox.
#[derive(Debug)]
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Mailbox<T> {
    /// Moves all messages to the end of `into` and returns their number. Call it for every mail
    /// event: messages left behind cause no second event.
    pub fn drain(&self, into: &mut Vec<T>) -> usize {
        let mut queue = self.shared.lock();
        let count = queue.messages.len();
        if into.is_empty() {
            std::mem::swap(&mut queue.messages, into);
        } else {
            into.append(&mut queue.messages);
        }
        count
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let messages = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            std::mem::take(&mut queue.messages)
        };
        // Outside the lock, because a message may own a sender of this mailbox.
        drop(messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox(capacity: usize) -> (Sender<u32>, Mailbox<u32>, Arc<Bell>) {
        let bell = Arc::new(Bell::new().expect("descriptors"));
        let (sender, mailbox, _) = make(capacity, Arc::clone(&bell));
        (sender, mailbox, bell)
    }

    fn eventfd_count(bell: &Bell) -> u64 {
        let mut count = [0u8; 8];
        // SAFETY: `count` is eight writable bytes.
        let got = unsafe { libc::read(bell.raw(), count.as_mut_ptr().cast(), 8) };
        if got == 8 { u64::from_ne_bytes(count) } else { 0 }
    }

    #[test]
    fn the_bound_holds_and_messages_keep_their_order() {
        let (sender, mailbox, _bell) = mailbox(3);
        for message in 0..3 {
            sender.send(message).expect("room");
        }
        assert_eq!(sender.send(3), Err(SendError::Full(3)));
        let mut got = vec![99];
        assert_eq!(mailbox.drain(&mut got), 3);
        assert_eq!(got, [99, 0, 1, 2]);
        drop(mailbox);
        assert_eq!(sender.send(4), Err(SendError::Closed(4)));
    }

    #[test]
    fn the_receiver_is_woken_when_the_sender_says_so() {
        let (sender, mailbox, bell) = mailbox(9);
        assert!(bell.try_sleep());
        let wake_up = sender.put(1).expect("room");
        sender.send(2).expect("room");
        assert_eq!(eventfd_count(&bell), 0, "the first sender wakes the receiver");
        drop(wake_up);
        assert_eq!(eventfd_count(&bell), 1);
        assert!(bell.answer());
        assert_eq!(mailbox.drain(&mut Vec::new()), 2);
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let (sender, mailbox, bell) = mailbox(9);
        sender.send(1).expect("room");
        assert_eq!(eventfd_count(&bell), 0, "awake: no system call");
        assert!(!bell.try_sleep(), "mail waits");
        assert!(bell.answer() && !bell.answer());
        mailbox.drain(&mut Vec::new());
        assert!(bell.try_sleep());
        sender.send(2).expect("room");
        sender.send(3).expect("room");
        assert_eq!(eventfd_count(&bell), 1);
        assert!(bell.answer());
        assert!(bell.try_sleep() && !bell.answer(), "woken by something else: no mail");
    }
}
