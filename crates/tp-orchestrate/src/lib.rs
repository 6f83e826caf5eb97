//! The orchestrator: one process drives all hosts.
