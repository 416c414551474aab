//! Erasure codes compiled to linear maps, with repair plans
