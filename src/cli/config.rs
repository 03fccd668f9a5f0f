//! `mirrorlet config`: the schema of the config file, and the resulting settings.

use std::io::{self, Write};

use anyhow::Context as _;

use super::table;
use super::{Failure, Outcome, client, resolve_args, root_of};
use crate::config::args::{ConfigCommand, SettingArgs, ShowOutput};
use crate::config::resolve::ShownSetting;
use crate::config::{Key, file};

/// Prints the requested output.
pub async fn config(command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Schema => Ok(io::stdout().write_all(file::schema().as_bytes())?),
        ConfigCommand::Show {
            settings,
            running,
            output,
        } => {
            let shown = if *running {
                of_the_agent(&settings.0).await?
            } else {
                resolve_args(&settings.0)?.show()
            };
            let text = render(&shown, *output)?;
            Ok(anstream::stdout().write_all(text.as_bytes())?)
        }
    }
}

/// Returns the settings of the running agent; only the flags that locate it are used.
async fn of_the_agent(settings: &SettingArgs) -> Result<Vec<ShownSetting>, Failure> {
    if let Some(other) = settings.settings.keys().find(|key| **key != Key::Root) {
        let flag = other.row().flag;
        return Err(Failure::Usage(anyhow::anyhow!(
            "--{flag} can't be used with --running, which shows the settings that the agent was started with"
        )));
    }
    let answer = client::get(&root_of(settings)?, "/v1/config").await?;
    let shown = serde_json::from_slice(&answer.whole().await?);
    Ok(shown.context("failed to decode the agent's answer")?)
}

fn render(shown: &[ShownSetting], output: ShowOutput) -> anyhow::Result<String> {
    Ok(match output {
        ShowOutput::Table => table(shown),
        ShowOutput::Json => serde_json::to_string_pretty(shown)? + "\n",
        ShowOutput::Yaml => serde_saphyr::to_string(&shown)?,
    })
}

fn table(shown: &[ShownSetting]) -> String {
    let row = |setting: &ShownSetting| {
        let values = setting.values.join(", ");
        let value = if values.is_empty() { "-" } else { &values };
        vec![
            setting.key.as_str().into(),
            value.into(),
            setting.origin.as_str().into(),
        ]
    };
    table::titled(["KEY", "VALUE", "FROM"], shown.iter().map(row))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::file::LocatedFile;
    use crate::config::{Ambient, Key, Setting, resolve};

    #[test]
    fn the_table_says_where_each_value_is_from_and_hides_secrets() {
        let flags = BTreeMap::from([(Key::Root, Setting(vec!["/r".to_owned()]))]);
        let file = LocatedFile::parse(
            "/etc/m.yaml",
            "nodeName: box\nmanifestUrlHeaders: [\"Authorization: Bearer hunter2\"]\n",
        )
        .unwrap();
        let mut ambient = Ambient::default();
        ambient
            .env
            .insert("MIRRORLET_SETTLE".to_owned(), "5ms".to_owned());
        let shown = resolve(&flags, Some(&file), &ambient).unwrap().show();
        let text = render(&shown, ShowOutput::Table).unwrap();
        let plain = anstream::adapter::strip_str(&text).to_string();
        insta::assert_snapshot!(plain);
        for output in [ShowOutput::Table, ShowOutput::Json, ShowOutput::Yaml] {
            assert!(!render(&shown, output).unwrap().contains("hunter2"));
        }
    }
}
