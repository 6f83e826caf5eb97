//! Whether two names are one machine.

/// What tells one running system from another; a part that could not be read is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// This boot of this kernel: the same in all containers of a machine.
    pub boot: Option<&'a str>,
    /// The network namespace within it.
    pub network: Option<&'a str>,
}

/// How two hosts stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Two machines, as far as they tell.
    Apart,
    /// One machine and one network: two names for one host.
    OneHost,
    /// Two network namespaces (containers) of one machine.
    Containers,
}

impl<'a> Identity<'a> {
    /// From the words `BOOT [NETWORK]`.
    pub fn parse(words: &'a str) -> Self {
        // Numbers of namespaces are alike on many machines; without the boot they say nothing.
        let is_network = |word: &&str| word.starts_with("net:");
        let words = || words.split_ascii_whitespace();
        Self {
            boot: words().find(|word| !is_network(word)),
            network: words().find(is_network),
        }
    }

    /// How this host and another stand to each other. A boot that nobody knows is no boot in common; networks are apart
    /// only where both are known and differ.
    pub fn relation(self, other: Self) -> Relation {
        match (self.boot, other.boot) {
            (Some(one), Some(two)) if one == two => match (self.network, other.network) {
                (Some(one), Some(two)) if one != two => Relation::Containers,
                _ => Relation::OneHost,
            },
            _ => Relation::Apart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_are_one_host_where_boot_and_network_are_one() {
        let of = Identity::parse;
        let cases = [
            ("b1 net:[1]", "b1 net:[1]", Relation::OneHost),
            ("b1 net:[1]", "b1 net:[2]", Relation::Containers),
            ("b1 net:[1]", "b2 net:[1]", Relation::Apart),
            ("b1", "b1 net:[2]", Relation::OneHost),
            ("b1", "b1", Relation::OneHost),
            ("net:[1]", "net:[1]", Relation::Apart),
            ("", "", Relation::Apart),
        ];
        for (one, two, expected) in cases {
            assert_eq!(of(one).relation(of(two)), expected, "`{one}` and `{two}`");
            assert_eq!(of(two).relation(of(one)), expected, "`{two}` and `{one}`");
        }
    }
}
