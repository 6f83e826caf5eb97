//! First inputs of the fuzz targets, made by the encoders that ranks use.

/// Target, name and bytes of every seed.
pub(super) fn all() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |target, seeds: Vec<(&'static str, Vec<u8>)>| {
        all.extend(seeds.into_iter().map(|(name, bytes)| (target, name, bytes)));
    };
    add("handshake", crate::bootstrap::fuzz::handshake_seeds());
    add("meeting", crate::bootstrap::fuzz::meeting_seeds());
    add("agreement", crate::bootstrap::fuzz::agreement_seeds());
    add("fate", crate::fate::fuzz::seeds());
    add("plan", crate::plan::fuzz::seeds());
    add("wire", crate::wire::fuzz::wire_seeds());
    add("mesh", crate::wire::fuzz::mesh_seeds());
    add("texts", crate::wire::fuzz::text_seeds());
    all
}
