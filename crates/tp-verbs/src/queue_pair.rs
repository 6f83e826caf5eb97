//! Reliable connected queue pairs.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::completion::CompletionQueue;
use crate::device::{Context, Mtu, last_errno};
use crate::error::{Error, Place};
use crate::gid::{Gid, PortNum};
use crate::memory::ProtectionDomain;
use crate::post::{Chain, MAX_CHAIN, Source};
use crate::sys::*;

/// The size of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Send requests outstanding at most.
    pub sends: u32,
    /// Bytes that a request may carry inside itself.
    pub inline: u32,
}

/// The near end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near {
    /// Port of the device.
    pub port: PortNum,
    /// Index of the GID that packets come from.
    pub gid_index: u8,
    /// The GID at that index, for messages.
    pub gid: Gid,
    /// First packet sequence number that this end sends, 24 bits.
    pub first_packet: u32,
}

/// The far end of a connection, as the peer tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// The peer's queue pair number.
    pub queue_pair: u32,
    /// The peer's GID.
    pub gid: Gid,
    /// The peer's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// First packet sequence number that the peer sends, 24 bits.
    pub first_packet: u32,
}

/// What both ends agree on, and how patient this end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The lesser of both ends' MTUs.
    pub mtu: Mtu,
    /// Traffic class of every packet.
    pub traffic_class: u8,
    /// Wait for an acknowledgement: 4.096 µs times 2 to this power; 0 is for ever.
    pub timeout: u8,
    /// Repeats after it, 0 to 7. Some drivers take 7 as for ever.
    pub retries: u8,
}

impl Path {
    /// The values of the reference: 67 ms, seven repeats.
    pub fn new(mtu: Mtu) -> Self {
        Self {
            mtu,
            traffic_class: 0,
            timeout: 14,
            retries: 7,
        }
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Made.
    Reset,
    /// Bound to a port.
    Init,
    /// Takes what the peer writes.
    ReadyToReceive,
    /// Also sends.
    ReadyToSend,
    /// Failed; outstanding requests are flushed.
    Error,
    /// Something else, by its number.
    Other(u32),
}

/// One end of a connection.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<ProtectionDomain>,
    _completions: Arc<CompletionQueue>,
    raw: NonNull<ibv_qp>,
    capacity: Capacity,
}

// SAFETY: libibverbs allows calls on one object from any thread; posting takes the driver's lock.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A new one, in state reset. Only requests that ask for it leave a completion.
    ///
    /// # Errors
    /// The device is out of queue pairs, or has none of that size.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        capacity: Capacity,
    ) -> Result<Self, Error> {
        let context = &domain.context;
        let mut init = ibv_qp_init_attr {
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            cap: ibv_qp_cap {
                max_send_wr: capacity.sends,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: capacity.inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: domain and queue are live and of one device; the struct is live.
        let raw = unsafe { (context.verbs.functions().ibv_create_qp)(domain.raw.as_ptr(), &raw mut init) };
        let errno = last_errno();
        let raw = NonNull::new(raw).ok_or_else(|| {
            context.error("make a queue pair", "ibv_create_qp", context.place(), Some(errno))
        })?;
        // The driver may give more than was asked for, and says so.
        let capacity = Capacity {
            sends: init.cap.max_send_wr,
            inline: init.cap.max_inline_data,
        };
        Ok(Self {
            domain: Arc::clone(domain),
            _completions: Arc::clone(completions),
            raw,
            capacity,
        })
    }

    /// Its number, which the peer needs.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live; the library does not change the field.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// What the driver gave.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Connects: reset to ready to send, in the three steps of the verbs. The peer does the same; data may be sent when
    /// both have returned.
    ///
    /// # Errors
    /// The step that failed, with port, GID and peer.
    pub fn connect(&self, near: &Near, far: &Far, path: &Path) -> Result<(), Error> {
        let place = || Place {
            peer: Some(format!("{} queue pair {:#x}", far.gid, far.queue_pair)),
            ..self
                .context()
                .place()
                .with_port(near.port)
                .with_gid(u32::from(near.gid_index), Some(near.gid))
        };
        self.init(near, place)?;
        self.ready_to_receive(near, far, path, place)?;
        self.ready_to_send(near, path, place)
    }

    fn init(&self, near: &Near, place: impl FnOnce() -> Place) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: near.port.0,
            qp_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask, "bind the queue pair to its port", place)
    }

    fn ready_to_receive(
        &self,
        near: &Near,
        far: &Far,
        path: &Path,
        place: impl FnOnce() -> Place,
    ) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu(path.mtu.code()),
            dest_qp_num: far.queue_pair,
            rq_psn: far.first_packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: far.gid.0 },
                    flow_label: 0,
                    sgid_index: near.gid_index,
                    hop_limit: 64,
                    traffic_class: path.traffic_class,
                },
                dlid: far.lid,
                sl: 0,
                is_global: 1,
                port_num: near.port.0,
                ..ibv_ah_attr::default()
            },
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(
            &mut attributes,
            mask,
            "make the queue pair ready to receive",
            place,
        )
    }

    fn ready_to_send(&self, near: &Near, path: &Path, place: impl FnOnce() -> Place) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: path.timeout,
            retry_cnt: path.retries,
            rnr_retry: 7,
            sq_psn: near.first_packet,
            max_rd_atomic: 1,
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask, "make the queue pair ready to send", place)
    }

    /// Moves it to the error state: what is outstanding is flushed and completes with that status.
    ///
    /// # Errors
    /// The device is gone.
    pub fn fail(&self) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_ERR,
            ..ibv_qp_attr::default()
        };
        let place = || self.context().place();
        self.modify(
            &mut attributes,
            ibv_qp_attr_mask::IBV_QP_STATE,
            "halt the queue pair",
            place,
        )
    }

    /// Its state, as the device has it.
    ///
    /// # Errors
    /// The device is gone.
    pub fn state(&self) -> Result<State, Error> {
        let mut attributes = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        let mask = c_int::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(0);
        let query = self.context().verbs.functions().ibv_query_qp;
        // SAFETY: the queue pair and both structs are live.
        let code = unsafe { query(self.raw.as_ptr(), &raw mut attributes, mask, &raw mut init) };
        self.context()
            .checked(code, "read the queue pair's state", "ibv_query_qp", || {
                self.context().place()
            })?;
        Ok(match attributes.qp_state {
            ibv_qp_state::IBV_QPS_RESET => State::Reset,
            ibv_qp_state::IBV_QPS_INIT => State::Init,
            ibv_qp_state::IBV_QPS_RTR => State::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => State::ReadyToSend,
            ibv_qp_state::IBV_QPS_ERR => State::Error,
            ibv_qp_state(other) => State::Other(other),
        })
    }

    /// Posts every request of the chain, in order.
    ///
    /// # Safety
    /// The windows that the chain was checked against are registered with this queue pair's device, here and at the peer,
    /// until its completion is read; only then may the local bytes change.
    ///
    /// # Errors
    /// The queue is full or not ready. Requests before the refused one are posted.
    #[inline]
    pub unsafe fn post(&self, chain: &Chain) -> Result<(), Error> {
        let requests = chain.requests();
        let mut values = [0u32; MAX_CHAIN];
        // Only what is used is written: most chains have one or two requests of 128 bytes.
        let mut entries = [const { MaybeUninit::<ibv_sge>::uninit() }; MAX_CHAIN];
        let mut raw = [const { MaybeUninit::<ibv_send_wr>::uninit() }; MAX_CHAIN];
        let list: *mut ibv_sge = entries.as_mut_ptr().cast();
        let start: *mut ibv_send_wr = raw.as_mut_ptr().cast();
        for (number, request) in requests.iter().enumerate() {
            let mut flags = if request.signaled {
                ibv_send_flags::IBV_SEND_SIGNALED.0
            } else {
                0
            };
            let (address, key) = match request.source {
                Source::Memory { address, key, inline } => {
                    flags |= if inline {
                        ibv_send_flags::IBV_SEND_INLINE.0
                    } else {
                        0
                    };
                    (address, key)
                }
                Source::Value(value) => {
                    values[number] = value;
                    flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                    // Carried inside the request: the address is read while posting, no key is looked at.
                    (&raw const values[number] as u64, 0)
                }
            };
            let (entry, place) = (list.wrapping_add(number), start.wrapping_add(number));
            let bytes = ibv_sge {
                addr: address,
                length: request.length,
                lkey: key,
            };
            let next = if number + 1 < requests.len() {
                place.wrapping_add(1)
            } else {
                std::ptr::null_mut()
            };
            let one = ibv_send_wr {
                wr_id: chain.id(),
                next,
                sg_list: entry,
                num_sge: 1,
                opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                send_flags: flags,
                wr: ibv_send_wr__bindgen_ty_2 {
                    rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
                        remote_addr: request.remote,
                        rkey: request.remote_key,
                    },
                },
                ..ibv_send_wr::default()
            };
            // SAFETY: a chain has at most as many requests as both arrays have places.
            unsafe {
                entry.write(bytes);
                place.write(one);
            }
        }
        // SAFETY: the queue pair is live, and so is the context that its head points to.
        let operation = unsafe { (*self.raw.as_ref().context).ops.post_send };
        let Some(post_send) = operation else {
            return self
                .context()
                .checked(libc::EOPNOTSUPP, "post", "ibv_post_send", || {
                    self.context().place()
                });
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the list, its entries and the values live until the call returns; the caller vouches for the windows.
        let code = unsafe { post_send(self.raw.as_ptr(), start, &raw mut refused) };
        self.context()
            .checked(code, "post an RDMA write", "ibv_post_send", || {
                self.context().place()
            })
    }

    fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    fn modify(
        &self,
        attributes: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        action: &'static str,
        place: impl FnOnce() -> Place,
    ) -> Result<(), Error> {
        let mask = c_int::try_from(mask.0).unwrap_or(0);
        // SAFETY: the queue pair and the struct are live; the mask names only fields that are set.
        let code =
            unsafe { (self.context().verbs.functions().ibv_modify_qp)(self.raw.as_ptr(), attributes, mask) };
        self.context().checked(code, action, "ibv_modify_qp", place)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is live and not used after.
        unsafe { (self.context().verbs.functions().ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}
