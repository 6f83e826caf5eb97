//! Rank, world and master as the innermost launcher gives them: torchrun, then Open MPI, PMI, Slurm.

use super::source::Sources;

/// What a launcher says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The launcher's name, as people call it.
    pub launcher: &'static str,
    /// This rank, with the variable that said so.
    pub rank: Said,
    /// Number of ranks, with the variable that said so.
    pub world: Said,
    /// Address of rank 0's host, where the launcher gives one.
    pub master: Option<Said>,
    /// Whether the launcher says that all ranks are on this host; then `localhost` reaches rank 0.
    pub one_host: bool,
}

/// A value and the variable it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The value's text.
    pub text: String,
    /// The variable.
    pub variable: &'static str,
}

/// The innermost launcher that started this process, if any did. A launcher counts only where it gives both rank and
/// world: a lone `RANK` in a shell is nobody's.
pub fn innermost(sources: &Sources) -> Option<Launch> {
    let say = |variable: &'static str| {
        let text = sources.environment.get(variable)?.to_str()?.trim();
        (!text.is_empty()).then(|| Said {
            text: text.to_owned(),
            variable,
        })
    };
    let both = |rank, world| Some((say(rank)?, say(world)?));
    let same = |a: &'static str, world: &Said| say(a).is_some_and(|local| local.text == world.text);

    if let Some((rank, world)) = both("RANK", "WORLD_SIZE") {
        let one_host = same("LOCAL_WORLD_SIZE", &world);
        return Some(Launch {
            launcher: "torchrun",
            rank,
            world,
            master: say("MASTER_ADDR"),
            one_host,
        });
    }
    if let Some((rank, world)) = both("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") {
        let one_host = same("OMPI_COMM_WORLD_LOCAL_SIZE", &world);
        return Some(Launch {
            launcher: "Open MPI",
            rank,
            world,
            master: None,
            one_host,
        });
    }
    if let Some((rank, world)) = both("PMI_RANK", "PMI_SIZE") {
        let one_host = same("MPI_LOCALNRANKS", &world);
        return Some(Launch {
            launcher: "PMI",
            rank,
            world,
            master: None,
            one_host,
        });
    }
    // A batch script also has SLURM_PROCID; only a step (`srun`) has a step id, and only a step starts ranks.
    say("SLURM_STEP_ID")?;
    let (rank, world) =
        both("SLURM_PROCID", "SLURM_STEP_NUM_TASKS").or_else(|| both("SLURM_PROCID", "SLURM_NTASKS"))?;
    let one_host = say("SLURM_STEP_NUM_NODES").is_some_and(|nodes| nodes.text == "1");
    // On one host the default, loopback, reaches rank 0; the node's name would lead over an interface.
    let master = say("SLURM_STEP_NODELIST")
        .or_else(|| say("SLURM_NODELIST"))
        .filter(|_| !one_host)
        .and_then(|list| {
            let text = first_host(&list.text)?;
            Some(Said {
                text,
                variable: list.variable,
            })
        });
    Some(Launch {
        launcher: "Slurm",
        rank,
        world,
        master,
        one_host,
    })
}

/// The first name of a Slurm host list: `gpu[03-05,9],login` starts with `gpu03`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let name = match rest.strip_prefix('[') {
        Some(ranges) => {
            let inside = ranges.split_once(']')?;
            let first = inside.0.split([',', '-']).next()?;
            let suffix = inside.1.split(',').next()?;
            // A second bracket group takes its own first number.
            let suffix = if suffix.contains('[') {
                first_host(inside.1)?
            } else {
                suffix.to_owned()
            };
            format!("{prefix}{first}{suffix}")
        }
        None => prefix.to_owned(),
    };
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("alpha", Some("alpha")),
            ("alpha,beta", Some("alpha")),
            ("gpu[03-05,9],login", Some("gpu03")),
            ("r[1,3]-n[07-09]", Some("r1-n07")),
            ("gpu[7]x,b", Some("gpu7x")),
            ("", None),
            ("gpu[1", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn the_innermost_launcher_wins() {
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_NODELIST", "n[1-4]"),
        ];
        let launch = innermost(&Sources::of(slurm)).unwrap();
        assert_eq!((launch.launcher, launch.rank.text.as_str()), ("Slurm", "3"));
        assert_eq!(launch.master.unwrap().text, "n1");

        let here = slurm.into_iter().chain([("SLURM_STEP_NUM_NODES", "1")]);
        let launch = innermost(&Sources::of(here)).unwrap();
        assert!(
            launch.one_host && launch.master.is_none(),
            "loopback reaches rank 0"
        );

        let inner = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.7")];
        let launch = innermost(&Sources::of(slurm.into_iter().chain(inner))).unwrap();
        assert_eq!((launch.launcher, launch.world.text.as_str()), ("torchrun", "2"));
    }

    #[test]
    fn half_a_launcher_is_none() {
        assert_eq!(innermost(&Sources::of([("RANK", "1")])), None);
        assert_eq!(
            innermost(&Sources::of([("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")])),
            None
        );
    }
}
