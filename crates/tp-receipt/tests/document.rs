//! `receipt.json` as a format: its schema, its documentation, and that nothing is lost between a read and a write.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use proptest::prelude::*;
use serde_json::{Map, Value};
use std::fs;
use support::*;
use tp_receipt::receipt::Receipt;

/// A document with something in every table.
fn document() -> Value {
    let root = tempfile::tempdir().unwrap();
    let shape = Shape::default();
    let mut store = create(&out_dir(&root), &shape);
    let mut second = 1;
    for step in shape.steps() {
        good_step(&mut store, &key("none", &step, 1), &shape, second);
        second += 2;
    }
    bad_step(&mut store, &key("nccl", "suite-host", 1), &shape, second);
    good_step(&mut store, &key("nccl", "suite-host", 2), &shape, second + 2);
    store.redactor().host("hello");
    let receipt = store.finish(end(second + 4)).unwrap();
    assert!(!receipt.set_aside.is_empty() && !receipt.failures.is_empty());
    serde_json::from_str(&receipt.to_json()).unwrap()
}

/// Every place in a document, as a JSON pointer.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{i}"), out);
            }
        }
        Value::Object(map) => {
            for (name, item) in map {
                places(
                    item,
                    &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")),
                    out,
                );
            }
        }
        _ => {}
    }
}

#[derive(Clone, Debug)]
enum Change {
    Text(String),
    Number(f64),
    /// A field of a later version.
    Field(String, Value),
    /// An entry once more.
    Again,
}

fn change() -> impl Strategy<Value = Change> {
    let later = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(serde_json::json!({ "n": [1, null, { "deep": 0.1 }] })),
    ];
    prop_oneof![
        ".{0,12}".prop_map(Change::Text),
        any::<f64>()
            .prop_filter("finite", |x| x.is_finite())
            .prop_map(Change::Number),
        ("later_[a-z]{1,5}", later).prop_map(|(name, value)| Change::Field(name, value)),
        Just(Change::Again),
    ]
}

fn apply(change: &Change, at: &mut Value) {
    match (change, at) {
        (Change::Text(new), Value::String(text)) => *text = new.clone(),
        (Change::Number(new), Value::Number(number)) if number.is_f64() => {
            *number = serde_json::Number::from_f64(*new).unwrap();
        }
        (Change::Field(name, new), Value::Object(map)) => drop(map.insert(name.clone(), new.clone())),
        (Change::Again, Value::Array(items)) => items.extend(items.first().cloned()),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_read_is_written_again_and_nothing_is_lost(
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 1..40),
    ) {
        static DOCUMENT: std::sync::LazyLock<Value> = std::sync::LazyLock::new(document);
        let mut value = DOCUMENT.clone();
        for (which, change) in changes {
            let mut all = Vec::new();
            places(&value, "", &mut all);
            let before = value.clone();
            apply(&change, value.pointer_mut(&all[which.index(all.len())]).unwrap());
            // A map of texts takes no other field, and a word of ours no other text; nobody writes such a document.
            if Receipt::from_json(&value.to_string()).is_err() {
                value = before;
            }
        }
        let read = Receipt::from_json(&value.to_string()).unwrap();
        let written = read.to_json();
        prop_assert_eq!(&serde_json::from_str::<Value>(&written).unwrap(), &value);
        prop_assert_eq!(Receipt::from_json(&written).unwrap(), read);
    }
}

/// The part of JSON Schema that our schema uses: whether a value is as it says, and where not.
fn conforms(schema: &Value, root: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let part = root.pointer(name.trim_start_matches('#')).unwrap();
        return conforms(part, root, value, at, wrong);
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(options) = schema[choice].as_array() {
            let fits = |option: &&Value| {
                let mut wrong = Vec::new();
                conforms(option, root, value, at, &mut wrong);
                wrong.is_empty()
            };
            if options.iter().find(fits).is_none() {
                wrong.push(format!("{at}: {value} fits none of {choice}"));
            }
        }
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => vec![kind],
    };
    let fits = allowed.contains(&kind) || (kind == "integer" && allowed.contains(&"number"));
    if !fits {
        wrong.push(format!("{at}: {kind}, not {allowed:?}"));
    }
    if schema["enum"]
        .as_array()
        .is_some_and(|words| !words.contains(value))
    {
        wrong.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    if schema.get("const").is_some_and(|word| word != value) {
        wrong.push(format!("{at}: {value} is not {}", schema["const"]));
    }
    let empty = Map::new();
    let known = schema["properties"].as_object().unwrap_or(&empty);
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            wrong.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, item) in value.as_object().into_iter().flatten() {
        let at = format!("{at}/{name}");
        match (known.get(name), &schema["additionalProperties"]) {
            (Some(part), _) => conforms(part, root, item, &at, wrong),
            (None, part @ Value::Object(_)) => conforms(part, root, item, &at, wrong),
            // A map that is open for later versions; what this one writes is all described.
            (None, _) if !known.is_empty() && !at.contains("/latencies/") => {
                wrong.push(format!("{at}: not described"))
            }
            (None, _) => {}
        }
    }
    if let (Some(items), part @ Value::Object(_)) = (value.as_array(), &schema["items"]) {
        for (i, item) in items.iter().enumerate() {
            conforms(part, root, item, &format!("{at}/{i}"), wrong);
        }
    }
}

#[test]
fn a_receipt_is_as_its_schema_says() {
    let schema: Value = serde_json::from_str(&tp_receipt::schema::receipt()).unwrap();
    let check = |value: &Value| {
        let mut wrong = Vec::new();
        conforms(&schema, &schema, value, "", &mut wrong);
        wrong
    };
    let mut value = document();
    assert_eq!(check(&value), Vec::<String>::new());
    assert_eq!(
        check(&serde_json::from_str(&Receipt::default().to_json()).unwrap()),
        Vec::<String>::new()
    );
    value["totals"]["steps_passed"] = "many".into();
    value["arms"][0].as_object_mut().unwrap().remove("name");
    value["hosts"][0]["novelty"] = 1.into();
    assert_eq!(check(&value).len(), 3, "{:?}", check(&value));
}

#[test]
fn the_committed_schema_is_the_one_of_the_types() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/receipt-1.json");
    let now = tp_receipt::schema::receipt();
    if std::env::var_os("TP_UPDATE_SCHEMA").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &now).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, now,
        "run TP_UPDATE_SCHEMA=1 cargo test -p tp-receipt --test document schema"
    );
}

/// Every field that the schema knows has its explanation in the documentation.
#[test]
fn the_documentation_names_every_field() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/receipts.md");
    let text = fs::read_to_string(path).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&tp_receipt::schema::receipt()).unwrap();
    let defs = schema["$defs"].as_object().unwrap().values();
    let mut fields = 0;
    for part in defs.chain([&schema]) {
        for name in part["properties"].as_object().into_iter().flat_map(|p| p.keys()) {
            assert!(
                text.contains(&format!("`{name}`")) || text.contains(&format!("`{name}[]`")),
                "docs/receipts.md says nothing of `{name}`"
            );
            fields += 1;
        }
    }
    assert!(fields > 100, "{fields}");
}
