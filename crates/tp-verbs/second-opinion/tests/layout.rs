//! Every struct that `tp-verbs` shares with libibverbs has the size, the alignment and the offsets that rdma-sys finds: two
//! generators, one of them run on this system's own header, agree.

use std::mem::{align_of, offset_of, size_of};

/// Compares one struct; unions without a name in C are left out, the fields behind them show their size.
macro_rules! same {
    ($name:ident: $($field:ident)*) => {{
        type Ours = tp_verbs::sys::$name;
        type Theirs = rdma_sys::$name;
        assert_eq!(size_of::<Ours>(), size_of::<Theirs>(), "size of {}", stringify!($name));
        assert_eq!(align_of::<Ours>(), align_of::<Theirs>(), "alignment of {}", stringify!($name));
        $(
            assert_eq!(
                offset_of!(Ours, $field),
                offset_of!(Theirs, $field),
                "offset of {}.{}",
                stringify!($name),
                stringify!($field)
            );
        )*
    }};
}

#[test]
fn every_shared_struct_lies_as_rdma_sys_says() {
    same!(ibv_gid_entry: gid gid_index port_num gid_type ndev_ifindex);
    same!(ibv_device_attr:
        fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver
        max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd
        max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom
        atomic_cap max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp
        max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq
        max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt
    );
    same!(ibv_port_attr:
        state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr
        pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width
        active_speed phys_state link_layer flags port_cap_flags2
    );
    same!(ibv_async_event: element event_type);
    same!(ibv_wc:
        wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags pkey_index slid sl
        dlid_path_bits
    );
    same!(ibv_pd: context handle);
    same!(ibv_mr: context pd addr length handle lkey rkey);
    same!(ibv_global_route: dgid flow_label sgid_index hop_limit traffic_class);
    same!(ibv_ah_attr: grh dlid sl src_path_bits static_rate is_global port_num);
    same!(ibv_qp_cap: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
    same!(ibv_qp_init_attr: qp_context send_cq recv_cq srq cap qp_type sq_sig_all);
    same!(ibv_qp_attr:
        qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags
        cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining
        max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry
        alt_port_num alt_timeout rate_limit
    );
    same!(ibv_sge: addr length lkey);
    same!(ibv_send_wr: wr_id next sg_list num_sge opcode send_flags wr qp_type);
    same!(ibv_recv_wr: wr_id next sg_list num_sge);
    same!(ibv_qp:
        context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond
        events_completed
    );
    same!(ibv_comp_channel: context fd refcnt);
    same!(ibv_cq:
        context channel cq_context handle cqe mutex cond comp_events_completed
        async_events_completed
    );
    same!(ibv_device: node_type transport_type name dev_name dev_path ibdev_path);
    same!(ibv_context_ops:
        alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv
    );
    same!(ibv_context: device ops cmd_fd async_fd num_comp_vectors mutex abi_compat);
}

#[test]
fn the_numbers_that_travel_are_the_same() {
    use rdma_sys as theirs;
    use tp_verbs::sys as ours;
    let states = [
        (ours::ibv_qp_state::IBV_QPS_RESET.0, theirs::ibv_qp_state::IBV_QPS_RESET),
        (ours::ibv_qp_state::IBV_QPS_RTS.0, theirs::ibv_qp_state::IBV_QPS_RTS),
        (ours::ibv_qp_state::IBV_QPS_ERR.0, theirs::ibv_qp_state::IBV_QPS_ERR),
    ];
    for (our, their) in states {
        assert_eq!(our, their);
    }
    let statuses = [
        (ours::ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0, theirs::ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
        (ours::ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0, theirs::ibv_wc_status::IBV_WC_RETRY_EXC_ERR),
    ];
    for (our, their) in statuses {
        assert_eq!(our, their);
    }
    assert_eq!(ours::ibv_wr_opcode::IBV_WR_RDMA_WRITE.0, theirs::ibv_wr_opcode::IBV_WR_RDMA_WRITE);
    assert_eq!(ours::ibv_qp_type::IBV_QPT_RC.0, theirs::ibv_qp_type::IBV_QPT_RC);
    assert_eq!(ours::ibv_event_type::IBV_EVENT_GID_CHANGE.0, theirs::ibv_event_type::IBV_EVENT_GID_CHANGE as u32);
    assert_eq!(ours::ibv_event_type::IBV_EVENT_PORT_ERR.0, theirs::ibv_event_type::IBV_EVENT_PORT_ERR as u32);
}
