//! Which RDMA port reaches which peer: facts, variable grammars, the pick.
