//! Addresses and routes from rtnetlink.
