//! The storage node: policy handlers, request table, chunk store. A state machine
