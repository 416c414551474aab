//! Job queues for the heavy steps of the data path, and the software engine
