//! Many requests at the same time, within one procedure.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Requests in flight unless a command says otherwise. Each has at most some KiB.
pub(super) const REQUESTS_AT_ONCE: usize = 64;

/// A future, or what it gave.
enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
}

impl<F: Future> Slot<F> {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Slot::Running(future) = self
            && let Poll::Ready(value) = future.as_mut().poll(context)
        {
            *self = Slot::Done(value);
        }
    }
}

/// Runs the futures that `next` gives, up to `width` at the same time, and hands their results to
/// `each`, in the order of the futures.
///
/// # Errors
/// The first error of `each`. Then the futures that run are dropped.
pub(super) async fn in_flight<F: Future>(
    width: usize,
    mut futures: impl Iterator<Item = F>,
    mut each: impl FnMut(F::Output) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut slots: VecDeque<Slot<F>> = VecDeque::new();
    poll_fn(move |context| {
        loop {
            while slots.len() < width.max(1) {
                let Some(future) = futures.next() else { break };
                slots.push_back(Slot::Running(Box::pin(future)));
            }
            slots.iter_mut().for_each(|slot| slot.poll(context));
            let mut took = false;
            while let Some(Slot::Done(_)) = slots.front() {
                if let Some(Slot::Done(value)) = slots.pop_front()
                    && let Err(error) = each(value)
                {
                    return Poll::Ready(Err(error));
                }
                took = true;
            }
            match slots.is_empty() {
                true if !took => return Poll::Ready(Ok(())),
                false if !took => return Poll::Pending,
                _ => {}
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use fieldstone_tasks::{Executor, oneshot};

    use super::*;

    #[test]
    fn results_come_in_order_and_few_run_at_once() {
        let (fillers, awaited): (Vec<_>, Vec<_>) = (0..5).map(|_| oneshot::<u32>()).unzip();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let ended = Rc::new(RefCell::new(false));
        let (seen_inside, ended_inside) = (Rc::clone(&seen), Rc::clone(&ended));
        let started = Rc::new(RefCell::new(0));
        let counter = Rc::clone(&started);
        let mut executor = Executor::default();
        executor.spawn(Box::pin(async move {
            let futures = awaited.into_iter().inspect(move |_| *counter.borrow_mut() += 1);
            let done = in_flight(2, futures, |value| {
                seen_inside.borrow_mut().push(value);
                Ok(())
            });
            assert!(done.await.is_ok());
            *ended_inside.borrow_mut() = true;
        }));
        executor.run();
        assert_eq!(*started.borrow(), 2);
        let mut fillers = fillers.into_iter().enumerate();
        let mut fill = |count: usize| {
            let mut two: Vec<_> = fillers.by_ref().take(count).collect();
            two.reverse();
            for (index, filler) in two {
                filler.fill(index as u32);
                executor.run();
            }
        };
        fill(2);
        assert_eq!((seen.borrow().clone(), *started.borrow()), (vec![0, 1], 4));
        fill(3);
        assert_eq!(seen.borrow().clone(), [0, 1, 2, 3, 4]);
        assert!(*ended.borrow());
    }

    #[test]
    fn an_error_ends_it() {
        let mut executor = Executor::default();
        let ended = Rc::new(RefCell::new(None));
        let result = Rc::clone(&ended);
        executor.spawn(Box::pin(async move {
            let futures = (0..10).map(|value| async move { value });
            let done = in_flight(3, futures, |value| {
                anyhow::ensure!(value < 4, "too large");
                Ok(())
            });
            *result.borrow_mut() = Some(done.await.is_err());
        }));
        executor.run();
        assert_eq!(*ended.borrow(), Some(true));
    }
}
