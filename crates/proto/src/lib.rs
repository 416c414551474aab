//! Wire and disk formats: headers, capabilities, replies. No logic
