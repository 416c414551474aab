//! A linear map as the table of the codes engine holds it.
