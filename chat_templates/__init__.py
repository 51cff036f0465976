"Chat and data templates, shipped as package data: see grpo_tutorials.core.chat."
