//! A port that several flows share fairly, by bytes (start-time fair queueing).
//!
//! Each flow is a first-in first-out queue. The port takes the head of the flow that has had the
//! fewest bytes. A flow that was idle gets no credit for it: it starts where the others are.

use std::collections::{BTreeMap, VecDeque};

/// The queue in front of a port.
#[derive(Debug)]
pub struct Fair<T> {
    flows: BTreeMap<u32, Flow<T>>,
    /// Bytes that a flow has had which has always been busy.
    served: u64,
    items: usize,
}

#[derive(Debug)]
struct Flow<T> {
    /// Bytes served before the head, on the scale of `Fair::served`.
    start: u64,
    queue: VecDeque<T>,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        Self { flows: BTreeMap::new(), served: 0, items: 0 }
    }
}

impl<T> Fair<T> {
    /// Items that wait.
    pub fn len(&self) -> usize {
        self.items
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Appends an item to a flow.
    pub fn push(&mut self, flow: u32, item: T) {
        let entry =
            self.flows.entry(flow).or_insert_with(|| Flow { start: 0, queue: VecDeque::new() });
        if entry.queue.is_empty() {
            entry.start = entry.start.max(self.served);
        }
        entry.queue.push_back(item);
        self.items += 1;
    }

    /// The item that comes next.
    pub fn peek(&self) -> Option<&T> {
        self.flows.get(&self.next_flow()?)?.queue.front()
    }

    /// Takes the item that comes next; `bytes` is its size.
    pub fn pop(&mut self, bytes: u64) -> Option<T> {
        let flow = self.next_flow()?;
        let entry = self.flows.get_mut(&flow)?;
        let item = entry.queue.pop_front()?;
        self.served = entry.start;
        entry.start += bytes;
        self.items -= 1;
        Some(item)
    }

    fn next_flow(&self) -> Option<u32> {
        let busy = self.flows.iter().filter(|(_, flow)| !flow.queue.is_empty());
        busy.min_by_key(|(key, flow)| (flow.start, **key)).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_flow_saves_nothing() {
        let mut fair = Fair::default();
        for _ in 0..10 {
            fair.push(1, 'a');
            fair.pop(100);
        }
        for _ in 0..3 {
            fair.push(1, 'a');
            fair.push(2, 'b');
        }
        let order: String = std::iter::from_fn(|| fair.pop(100)).collect();
        assert!(!order.contains("bbb"), "{order}: flow 2 is not served alone");
        assert!(fair.is_empty() && fair.peek().is_none());
    }

    proptest! {
        /// Flows that are busy all the time never differ by more than one packet of each.
        #[test]
        fn busy_flows_get_the_same_bytes(
            sizes in proptest::collection::vec(64u64..2048, 2..6), rounds in 10usize..60,
        ) {
            let mut fair = Fair::default();
            for (flow, bytes) in sizes.iter().enumerate() {
                for _ in 0..rounds * 40 {
                    fair.push(flow as u32, (flow, *bytes));
                }
            }
            let mut served = vec![0u64; sizes.len()];
            for _ in 0..rounds {
                let (flow, bytes) = *fair.peek().expect("all are busy");
                prop_assert_eq!(fair.pop(bytes), Some((flow, bytes)));
                served[flow] += bytes;
            }
            let largest = served.iter().max().expect("two or more");
            let smallest = served.iter().min().expect("two or more");
            prop_assert!(largest - smallest <= 2 * 2048, "{served:?}");
        }
    }
}
