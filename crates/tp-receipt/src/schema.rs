//! The JSON Schema of `receipt.json`, made from the types.

use crate::receipt::{Receipt, SCHEMA};
use schemars::generate::SchemaSettings;

/// The schema's text, as `docs/schema/receipt-1.json` has it.
pub fn receipt() -> String {
    let mut schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<Receipt>();
    schema.insert(
        "$id".into(),
        format!("https://tp-bringup.invalid/schema/receipt-{SCHEMA}.json").into(),
    );
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
