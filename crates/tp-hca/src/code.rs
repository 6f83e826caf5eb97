//! The closed list of codes that the `hca` document uses, each with what it means and what to do.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($variant:ident, $text:literal, $doc:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $(#[doc = $doc] #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// Every code there is, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as the document spells it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What the code means and what to do about it, as `docs/hca.md` gives it.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

codes! {
    /// Why a pick was refused.
    ErrorCode {
        BadFile, "bad-file", "The facts file cannot be read: not TOML, an unknown key, a value of the wrong kind, a rank given twice. Line and column are named.";
        BadSyntax, "bad-syntax", "A variable does not follow its grammar, or NCCL would silently read it otherwise than it looks. The text names the character and the fix.";
        MixedModes, "mixed-modes", "`TF_TP_ROCE_HCA` and `NCCL_IB_HCA` are both set and name different devices. Unset one, or make them name the same devices.";
        UnknownDevice, "unknown-device", "A variable names a device that this host does not have, or an entry of `NCCL_IB_HCA` matches no port.";
        AddressMismatch, "address-mismatch", "The inventory gives a rank an address that its host does not have. Both values are named; correct the one that is wrong.";
        Disagree, "disagree", "The fabric has rails and the variables are at fault: a port that one of them names is left over, since it reaches no peer or another rank's variable leaves out its partner. Name both ends of the same rails, or unset the variable.";
        NoPort, "no-port", "A host has no RDMA port at all.";
        PortDown, "port-down", "A named port, or every port of a host, is not ACTIVE or has no carrier. Check cable and link.";
        NoGid, "no-gid", "A port has no RoCE v2 GID of a usable address, or not the one that was pinned. Give its netdev an address.";
        WrongLinkLayer, "wrong-link-layer", "A port is InfiniBand where RoCE is wanted. The link layers never mix in one pick; on InfiniBand LIDs decide, not GIDs and subnets.";
        SoftDevice, "soft-device", "Only a software RDMA device (rxe, siw) is left and `TF_TP_ROCE_SOFT=1` is not set.";
        NotOpenable, "not-openable", "Ports are visible in sysfs but `/dev/infiniband/uverbs*` cannot be opened. In a container pass `--device /dev/infiniband`.";
        UnknownFact, "unknown-fact", "The facts do not say enough to pick (a state, a link layer, a prefix length), and nothing is guessed.";
        TooManyPorts, "too-many-ports", "The rails of one rank need more ports than NCCL reads from `NCCL_IB_HCA` (32).";
        NoSharedRail, "no-shared-rail", "Two ranks share no subnet and no route between usable ports. The text says what would make one.";
    }
}

codes! {
    /// What a pick warns about.
    WarningCode {
        DuplicateSubnet, "duplicate-subnet", "Several ports of one host are in one subnet: addresses cannot tell the rails apart, and ARP may answer on the wrong port. Give each rail its own subnet.";
        LinkLocal, "link-local", "A port has link-local addresses only and was left out, or a link-local GID was pinned.";
        GidIndexPinned, "gid-index-pinned", "A GID index is set by hand. Indexes drift across reboots, differ per port and host, and are resolved at every start when left unset.";
        PrefixMatch, "prefix-match", "An entry of `NCCL_IB_HCA` without `=` matches as a prefix and catches more devices than it names.";
        EmptyVariable, "empty-variable", "A variable is set and empty. It counts as unset here; other programs may read it otherwise.";
        MtuMismatch, "mtu-mismatch", "The two ends of a rail have different active MTUs; the smaller one is used.";
        SpeedMismatch, "speed-mismatch", "The two ends of a rail, or the rails of a pair, run at different speeds; the slowest sets the pace.";
        SoftDevice, "soft-device", "A software RDMA device is in use. Its figures say nothing about hardware.";
        LostRail, "lost-rail", "A port is ready and the one at the other end that shares its subnet is not: the pair has fewer rails than it is cabled for.";
        Unprobed, "unprobed", "Rails rest on addresses and routes; no RDMA write has crossed them yet.";
        UnknownFact, "unknown-fact", "A fact is missing that would have been used; what follows from it is not known.";
        Disagree, "disagree", "A port that would have been picked is left out since another rank's variable leaves out its partner.";
        SharedCable, "shared-cable", "Several rails of a pair run over one cable: they share its bandwidth.";
        TwinUnused, "twin-unused", "The other PCIe function of a picked cable is up and not used; one function alone does not carry the cable's full rate.";
        SingleRail, "single-rail", "All ports of a pair are behind one bond and make a single rail.";
        EnvKept, "env-kept", "A variable that the user set differs from what the pick would set. It is kept.";
        NcclTooOld, "nccl-too-old", "Ranks use different ports for different peers, and this NCCL is older than 2.30.7, which brought subnet-aware routing.";
        NcclPairing, "nccl-pairing", "NCCL cannot be told this pairing of rails or GIDs by its variables; it may pair ports or choose a GID otherwise.";
        MixedFamilies, "mixed-families", "Some pairs of ranks share only IPv4 and others only IPv6; NCCL takes one family for all of a rank's ports.";
        SameHost, "same-host", "Ranks on one host need no rail between them.";
    }
}

impl ErrorCode {
    /// Process exit code of `hca`: 2 when a variable, the inventory or the file is wrong, 3 when the fabric cannot.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::BadFile
            | Self::BadSyntax
            | Self::MixedModes
            | Self::UnknownDevice
            | Self::AddressMismatch
            | Self::Disagree => 2,
            Self::NoPort
            | Self::PortDown
            | Self::NoGid
            | Self::WrongLinkLayer
            | Self::SoftDevice
            | Self::NotOpenable
            | Self::UnknownFact
            | Self::TooManyPorts
            | Self::NoSharedRail => 3,
        }
    }
}
